"""The same jobs between real parties, on Flower: federations, host, join, keys and processes."""
