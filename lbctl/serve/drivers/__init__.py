"""Drivers: each driver applies the published fleet to one proxy running on this machine."""
