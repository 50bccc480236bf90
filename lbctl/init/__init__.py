"""`lbctl init`: servers are asked what they are, and a fleet file is written of what they say."""
