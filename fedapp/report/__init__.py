"""Pictures of runs and of their data."""
