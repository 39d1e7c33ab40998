"""`toolstep serve`: an OpenAI-compatible HTTP server over the rollout engine.

`command` is the command line, `app` the routes, `worker` the thread that steps the engine.  FastAPI and uvicorn come
with the extra `serve`; all but `command` is imported when it runs.
"""
