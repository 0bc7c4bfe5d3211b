// Appends an order once, however often it is run; then takes what its group has to do, and says so.
//
//	go run examples/http/orders.go http://127.0.0.1:8085
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"os"
	"strings"
)

type answer struct {
	Detail       string // why it was refused
	Appended     []struct{ Duplicate bool }
	Records      []struct{ ID, Text string }
	Acknowledged int
}

func post(path, body string) (found answer) {
	request, _ := http.NewRequest("POST", os.Args[1]+"/api/v2/streams"+path, strings.NewReader(body))
	request.Header = http.Header{"Content-Type": {"application/json"}, "Authorization": {"Bearer " + os.Getenv("TOKEN")}}
	response, err := http.DefaultClient.Do(request)
	if err == nil {
		err = json.NewDecoder(response.Body).Decode(&found)
	}
	if err != nil || found.Detail != "" {
		log.Fatal(err, found.Detail)
	}
	return found
}

func main() {
	post("", `{"name": "orders", "partitions": 2, "exist_ok": true}`)
	order := post("/orders/records?partition=0&producer=go&sequence=0", `{"records": [{"json": {"from": "go"}}]}`)
	fmt.Println("duplicate:", order.Appended[0].Duplicate)
	for _, record := range post("/orders/groups/go/records", `{"member": "one", "wait_s": 10}`).Records {
		fmt.Println(record.Text)
		done := post("/orders/groups/go/ack", fmt.Sprintf(`{"member": "one", "ids": [%q]}`, record.ID))
		fmt.Println("acknowledged:", done.Acknowledged)
	}
}
