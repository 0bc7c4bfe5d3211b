// Appends an order once, however often it is run; then takes what its group has to do, and says so.
//
//	go run examples/http/orders.go http://127.0.0.1:8085
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"os"
)

type answer struct {
	Code, Detail string
	Appended     []struct{ Duplicate bool }
	Records      []struct{ ID, Text string }
	Acknowledged int
}

func post(path string, body any) (found answer) {
	data, _ := json.Marshal(body)
	request, err := http.NewRequest("POST", os.Args[1]+"/api/v2/streams"+path, bytes.NewReader(data))
	if err != nil {
		log.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Authorization", "Bearer "+os.Getenv("TOKEN"))
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		log.Fatal(err)
	}
	defer response.Body.Close()
	if err := json.NewDecoder(response.Body).Decode(&found); err != nil || response.StatusCode >= 300 {
		log.Fatal(err, found.Code, found.Detail)
	}
	return found
}

type object = map[string]any

func main() {
	post("", object{"name": "orders", "partitions": 2, "exist_ok": true})
	order := object{"json": object{"from": "go"}}
	appended := post("/orders/records?partition=0&producer=go&sequence=0", object{"records": []object{order}})
	fmt.Println("duplicate:", appended.Appended[0].Duplicate)
	taken := post("/orders/groups/go/records", object{"member": "one", "wait_s": 10})
	ids := []string{}
	for _, record := range taken.Records {
		fmt.Println(record.Text)
		ids = append(ids, record.ID)
	}
	fmt.Println("acknowledged:", post("/orders/groups/go/ack", object{"member": "one", "ids": ids}).Acknowledged)
}
