#!/bin/sh
# Appends an order once, however often it is run; then takes what its group has to do, and says so.
#     sh examples/http/orders.sh http://127.0.0.1:8085
set -eu
streams=$1/api/v2/streams
post() {
    curl --silent --show-error --fail-with-body --header 'Content-Type: application/json' \
        --header "Authorization: Bearer ${TOKEN:-}" --data "$2" "$streams$1"
}
post '' '{"name": "orders", "partitions": 2, "exist_ok": true}' >/dev/null
post '/orders/records?partition=0&producer=shell&sequence=0' \
    '{"records": [{"json": {"from": "shell"}}]}' | jq -r '"duplicate: \(.appended[0].duplicate)"'
taken=$(post '/orders/groups/shell/records' '{"member": "one", "wait_s": 10}')
echo "$taken" | jq -r '.records[].text'
done=$(echo "$taken" | jq '{member: "one", ids: [.records[].id]}')
post '/orders/groups/shell/ack' "$done" | jq -r '"acknowledged: \(.acknowledged)"'
