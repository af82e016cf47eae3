"""The flows that deployments run; ``deployments/prefect.yaml`` names them."""
