"""The four jobs: label, clean, compare and train, with their settings, plans and disclosure."""
