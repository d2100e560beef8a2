"""Long measurements, run by command; each prints and writes its date, machine and command."""
