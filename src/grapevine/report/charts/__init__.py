"""Charts: described once, drawn as SVG on a page and as SVG and PNG files."""
