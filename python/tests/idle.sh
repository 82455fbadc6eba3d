#!/bin/sh
# A program that runs and says nothing.
exec sleep 60
