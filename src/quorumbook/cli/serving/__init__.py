"""What commands that run for long share.

stopping   when they are to end
logs       which lines they log, and in which form
telemetry  what they send by OpenTelemetry
"""
