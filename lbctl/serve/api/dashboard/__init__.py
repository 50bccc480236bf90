"""The dashboard: a page at `/` of the API, the stream of frames that updates it, and the history for its charts.

The page is static files without a build step; all its data comes from the API. The dashboard shows data without a token
where the API allows it, and asks for a token before it acts. The actions of the dashboard use the same endpoints as the
commands.
"""
