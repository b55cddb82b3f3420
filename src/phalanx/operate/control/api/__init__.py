"""The HTTP API: routes by subject, each a thin reading or writing of the controller. Decides nothing; never touches a device.

May not import the controller's own modules for anything but reading what they show: writes go through `Services.control`.
"""
