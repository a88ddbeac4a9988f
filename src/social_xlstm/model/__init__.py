"""The forecasting model: cells, encoders, social pooling, readout and head."""
