"""Predicts what a model's plans cost on this machine: counts the model's forward, and keeps the machine's figures."""
