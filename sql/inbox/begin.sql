-- Nothing: a driver that begins transactions by itself does so before this.
SELECT 1
