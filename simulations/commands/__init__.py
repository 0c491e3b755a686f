"""The commands of ``fedpeft`` for simulations, studies, reports and privacy."""
