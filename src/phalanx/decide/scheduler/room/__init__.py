"""Making room and keeping it: reservations, bookings, claims, preemption, elastic gangs, spot."""
