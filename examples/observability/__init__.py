"""What Sentry and OpenTelemetry hear of recovered and killed jobs."""
