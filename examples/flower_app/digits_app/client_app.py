"""The app's ClientApp: each client trains on its partition, and what it sends is private."""

import fedlsg.flower
from digits_app.task import workload

app = fedlsg.flower.client_app(workload)
