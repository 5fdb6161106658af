"""What a server shows over HTTP: the console and its data; more routes stand in ``app.ROUTES``."""
