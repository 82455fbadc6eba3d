module example.com/drill

go 1.21
