"""The report of one run or several, and the progress that is shown during a run."""
