"""Who uses a simulated cluster."""
