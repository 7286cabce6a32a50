"""Training in one call, the command line, the doctor, trained agents."""
