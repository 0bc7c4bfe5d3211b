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

type object = map[string]any

func post(path string, body object) (found struct {
	Detail       string
	Appended     []struct{ Duplicate bool }
	Records      []struct{ ID, Text string }
	Acknowledged int
}) {
	data, _ := json.Marshal(body)
	request, _ := http.NewRequest("POST", os.Args[1]+"/api/v2/streams"+path, bytes.NewReader(data))
	request.Header = http.Header{"Content-Type": {"application/json"}, "Authorization": {"Bearer " + os.Getenv("TOKEN")}}
	answer, err := http.DefaultClient.Do(request)
	if err == nil {
		err = json.NewDecoder(answer.Body).Decode(&found)
	}
	if err != nil || found.Detail != "" {
		log.Fatal(err, found.Detail)
	}
	return found
}

func main() {
	post("", object{"name": "orders", "partitions": 2, "exist_ok": true})
	order := object{"records": []object{{"json": object{"from": "go"}}}}
	fmt.Println("duplicate:", post("/orders/records?partition=0&producer=go&sequence=0", order).Appended[0].Duplicate)
	ids := []string{}
	for _, record := range post("/orders/groups/go/records", object{"member": "one", "wait_s": 10}).Records {
		fmt.Println(record.Text)
		ids = append(ids, record.ID)
	}
	fmt.Println("acknowledged:", post("/orders/groups/go/ack", object{"member": "one", "ids": ids}).Acknowledged)
}
