"""Which bookies an entry goes to: the schedule within an ensemble, and the choice of ensembles."""
