#!/bin/sh
# A program that never listens.
exec sleep 60
