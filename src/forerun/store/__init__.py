"""Models on disk: names, manifests, blobs, Modelfiles, and where models are fetched from.

`names` and `blobs` fix what a path in the store can be; `manifest` and `stored` are what a model
is; `store` is the door: it reads without locks, and writes through a `StoreWriter`. `modelfile`,
`sources`, `catalogue` and `inventory` say what to import, `wheel` and `hub` fetch it.
"""
