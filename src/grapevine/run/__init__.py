"""One driver for every runtime, the simulator, what a run leaves on disk, and its model."""
