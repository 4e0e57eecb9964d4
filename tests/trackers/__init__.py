"""Tests of fedapp/trackers/."""
