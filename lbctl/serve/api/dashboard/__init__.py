"""The dashboard: a page at `/` of the API, the stream of frames that moves it, and the history behind its charts.

The page is static files without a build step; all its data comes from the API. It shows, and asks for a token before it
acts: everything that it does goes through the same endpoints that the commands use.
"""
