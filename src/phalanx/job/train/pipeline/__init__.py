"""Pipeline parallelism: torch's schedules over stages of a model, and the timeline of what they did."""
