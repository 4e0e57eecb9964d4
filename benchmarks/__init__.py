"""Speed and size, measured against peers as ratios in one run."""
