"""fedlsg inside of somebody's Flower app: a ClientApp and a Strategy for a workload of their
own.
"""
