"""Child processes: started, watched, talked to and reaped, without torch."""
