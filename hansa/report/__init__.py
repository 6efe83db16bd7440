"""The report of a run or of several runs, and the progress that is shown while a run goes on."""
