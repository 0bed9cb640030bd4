"""An HTTP server on the engine, in the forms of OpenAI's API; this package needs the extra `serve`."""
