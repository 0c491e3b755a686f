"""Serve many task vectors from one frozen backbone over HTTP."""
