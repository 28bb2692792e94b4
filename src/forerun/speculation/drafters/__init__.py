"""The code that runs a draft for one loaded model, one file a kind (spec 03 DRF)."""
