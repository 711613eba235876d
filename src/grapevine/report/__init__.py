"""Pages and pictures of finished and running jobs."""
