"""The content of messages between server and clients: fields, their codecs and their labels."""
