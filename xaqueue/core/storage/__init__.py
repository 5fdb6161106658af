"""Files and hardening. This room knows neither queues nor branches."""
