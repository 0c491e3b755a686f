"""Messages between server and clients: sending, downlink, counted bytes, time."""
