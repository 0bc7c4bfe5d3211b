#!/bin/sh
# Makes a private CA, and certificates that it signs, with openssl.
#
#     sh certificates.sh AUTHORITY DIRECTORY ROLE GROUP NAME...
#     sh certificates.sh /root/ca /etc/quorumbook/tls cluster quorumbook bookie1.example.net
#
# AUTHORITY keeps the CA and its key; guard it.  DIRECTORY gets ca.pem, tls.pem, tls.key, and
# store.pem with key and certificate in one file, as ZooKeeper wants it; the files with the key
# are for root and GROUP.  ROLE is what a bookie with auth_plugin = "certificate-role" lets in or
# turns away; NAME is a host name or an IPv4 address.  What is there already is kept until 30
# days before it expires, so this can be run at every start.
set -eu
umask 077
authority=$1 directory=$2 role=$3 group=$4
shift 4
mkdir -p "$authority" "$directory"
new_key="-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"

# Python 3.13 and others verify strictly: a CA has to say that it signs, and each certificate by
# which key it was signed.
if ! [ -f "$authority/ca.pem" ]; then
    # shellcheck disable=SC2086 # words of options
    openssl req -x509 $new_key -days 3650 -subj "/CN=Quorumbook CA" \
        -addext keyUsage=critical,keyCertSign,cRLSign \
        -keyout "$authority/ca.key" -out "$authority/ca.pem.new" 2>/dev/null
    mv "$authority/ca.pem.new" "$authority/ca.pem"
fi

if ! openssl x509 -noout -checkend 2592000 -in "$directory/tls.pem" >/dev/null 2>&1 \
    || ! openssl verify -CAfile "$authority/ca.pem" "$directory/tls.pem" >/dev/null 2>&1; then
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    for name in "$@"; do
        case $name in
            *[!0-9.]*) names=${names:+$names,}DNS:$name ;;
            *) names=${names:+$names,}IP:$name ;;
        esac
    done
    printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth,clientAuth\n' "$names" >"$work/ext"
    printf 'basicConstraints=CA:FALSE\nauthorityKeyIdentifier=keyid\n' >>"$work/ext"
    # shellcheck disable=SC2086
    openssl req $new_key -subj "/OU=0:$role/CN=$1" \
        -keyout "$work/tls.key" -out "$work/request" 2>/dev/null
    openssl x509 -req -in "$work/request" -CA "$authority/ca.pem" -CAkey "$authority/ca.key" \
        -set_serial "0x$(openssl rand -hex 16)" -days 365 -extfile "$work/ext" \
        -out "$work/tls.pem" 2>/dev/null
    cat "$work/tls.key" "$work/tls.pem" >"$work/store.pem"
    cp "$authority/ca.pem" "$work/ca.pem"
    chmod 644 "$work/ca.pem" "$work/tls.pem"
    for file in tls.key store.pem; do
        chgrp "$group" "$work/$file"
        chmod 640 "$work/$file"
    done
    chmod 755 "$directory"
    # A running bookie reads the files again, and waits until key and certificate fit.
    for file in ca.pem tls.key store.pem tls.pem; do
        cp -p "$work/$file" "$directory/$file.new"
        mv "$directory/$file.new" "$directory/$file"
    done
fi
