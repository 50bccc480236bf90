"""The dashboard: a page served at the API's `/`, the stream of frames that updates it, and the history for its charts.

The page consists of static files and has no build step; all its data comes from the API. The dashboard shows data
without a token where the API allows it, and asks for a token before performing an action. The dashboard's actions use
the same endpoints as the commands.
"""
