"""The methods, one file each: client steps above, server program below."""
