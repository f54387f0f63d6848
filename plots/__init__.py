"""One function a figure; reads results only."""
