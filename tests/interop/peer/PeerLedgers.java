import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.netty.buffer.Unpooled;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.client.LedgerChecker;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.CreateBuilder;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.LastConfirmedAndEntry;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.client.api.ListLedgersResult;
import org.apache.bookkeeper.client.api.WriteFlag;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.meta.zk.ZKMetadataDriverBase;
import org.apache.bookkeeper.net.BookieId;
import org.apache.zookeeper.ZooKeeper;

/** Clients of the peer and the ledgers they have open, both known by number. */
final class PeerLedgers {
    private static final long PATIENCE_S = 90;

    private final PeerQueue queue = new PeerQueue();
    private final AtomicInteger numbers = new AtomicInteger();
    private final Map<Integer, BookKeeper> clients = new ConcurrentHashMap<>();
    private final Map<Integer, LedgerHandle> handles = new ConcurrentHashMap<>();

    boolean run(String op, JsonNode request, ObjectNode result) throws Exception {
        switch (op) {
            case "client": client(request, result); return true;
            case "close_client": clients.remove(request.get("client").asInt()).close(); return true;
            case "create": create(request, result); return true;
            case "open": open(request, result); return true;
            case "append": append(request, result); return true;
            case "force": await(handle(request).force()); return true;
            case "close": handles.remove(request.get("handle").asInt()).close(); return true;
            case "state": state(handle(request), result); return true;
            case "read": entries(read(request, false), result); return true;
            case "read_unconfirmed": entries(read(request, true), result); return true;
            case "batch_read": entries(batchRead(request), result); return true;
            case "read_last": readLast(request, result); return true;
            case "read_lac": readLac(request, result); return true;
            case "poll": poll(request, result); return true;
            case "delete": client(request).deleteLedger(ledger(request)); return true;
            case "list": list(request, result); return true;
            case "metadata": metadata(request, result); return true;
            case "check": check(request, result); return true;
            case "bookies": bookies(request, result); return true;
            case "expire_session": expireSession(request); return true;
            case "queue": queue.run(client(request), request, result); return true;
            default: return false;
        }
    }

    /** The bytes both sides agree on: the SHA-256 of "seed:index", over and over. */
    private static byte[] payload(String seed, long index, int size) throws Exception {
        byte[] block = MessageDigest.getInstance("SHA-256")
                .digest((seed + ":" + index).getBytes(StandardCharsets.UTF_8));
        byte[] payload = new byte[size];
        for (int at = 0; at < size; at += block.length) {
            System.arraycopy(block, 0, payload, at, Math.min(block.length, size - at));
        }
        return payload;
    }

    private static <T> T await(CompletableFuture<T> future) throws Exception {
        return future.get(PATIENCE_S, TimeUnit.SECONDS);
    }

    private BookKeeper client(JsonNode request) {
        return clients.get(request.get("client").asInt());
    }

    private LedgerHandle handle(JsonNode request) {
        return handles.get(request.get("handle").asInt());
    }

    private static long ledger(JsonNode request) {
        return request.get("ledger").asLong();
    }

    private static byte[] password(JsonNode request) {
        return request.get("password").asText().getBytes(StandardCharsets.UTF_8);
    }

    private void client(JsonNode request, ObjectNode result) throws Exception {
        ClientConfiguration conf = new ClientConfiguration();
        conf.setMetadataServiceUri(request.get("uri").asText());
        conf.setNumWorkerThreads(1);
        conf.setNumIOThreads(1);
        PeerServers.set(conf, request.get("conf"));
        int number = numbers.incrementAndGet();
        clients.put(number, new BookKeeper(conf));
        result.put("client", number);
    }

    private void keep(LedgerHandle handle, ObjectNode result) {
        int number = numbers.incrementAndGet();
        handles.put(number, handle);
        result.put("handle", number);
        state(handle, result);
    }

    private void create(JsonNode request, ObjectNode result) throws Exception {
        Map<String, byte[]> custom = new HashMap<>();
        request.get("custom").fields().forEachRemaining(field -> custom.put(
                field.getKey(), field.getValue().asText().getBytes(StandardCharsets.UTF_8)));
        CreateBuilder builder = client(request).newCreateLedgerOp()
                .withEnsembleSize(request.get("ensemble").asInt())
                .withWriteQuorumSize(request.get("write").asInt())
                .withAckQuorumSize(request.get("ack").asInt())
                .withDigestType(DigestType.valueOf(request.get("digest").asText()))
                .withPassword(password(request))
                .withCustomMetadata(custom);
        if (request.get("deferred_sync").asBoolean()) {
            builder = builder.withWriteFlags(WriteFlag.DEFERRED_SYNC);
        }
        if (!request.get("adv").asBoolean()) {
            keep((LedgerHandle) await(builder.execute()), result);
        } else if (request.get("ledger").isNull()) {
            keep((LedgerHandle) await(builder.makeAdv().execute()), result);
        } else {
            keep((LedgerHandle) await(
                    builder.makeAdv().withLedgerId(ledger(request)).execute()), result);
        }
    }

    private void open(JsonNode request, ObjectNode result) throws Exception {
        keep((LedgerHandle) await(client(request).newOpenLedgerOp()
                .withLedgerId(ledger(request))
                .withDigestType(DigestType.valueOf(request.get("digest").asText()))
                .withPassword(password(request))
                .withRecovery(request.get("recover").asBoolean())
                .execute()), result);
    }

    private static void state(LedgerHandle handle, ObjectNode result) {
        result.put("ledger", handle.getId());
        result.put("last_add_confirmed", handle.getLastAddConfirmed());
        result.put("length", handle.getLength());
        result.put("is_closed", handle.isClosed());
    }

    /** Appends all at once; with entry ids given, in the order given. */
    private void append(JsonNode request, ObjectNode result) throws Exception {
        LedgerHandle handle = handle(request);
        JsonNode sizes = request.get("sizes");
        JsonNode ids = request.get("entry_ids");
        long index = request.get("first_index").asLong();
        List<CompletableFuture<Long>> pending = new ArrayList<>();
        for (int i = 0; i < sizes.size(); i++) {
            boolean given = !ids.isNull();
            byte[] payload = payload(request.get("seed").asText(),
                    given ? ids.get(i).asLong() : index + i, sizes.get(i).asInt());
            if (!given) {
                pending.add(handle.appendAsync(Unpooled.wrappedBuffer(payload)));
                continue;
            }
            CompletableFuture<Long> future = new CompletableFuture<>();
            pending.add(future);
            handle.asyncAddEntry(ids.get(i).asLong(), payload, (rc, ledger, entry, context) -> {
                if (rc == 0) {
                    future.complete(entry);
                } else {
                    future.completeExceptionally(
                            org.apache.bookkeeper.client.BKException.create(rc));
                }
            }, null);
        }
        ArrayNode written = result.putArray("entry_ids");
        for (CompletableFuture<Long> one : pending) {
            written.add(await(one));
        }
    }

    private LedgerEntries read(JsonNode request, boolean unconfirmed) throws Exception {
        long first = request.get("first").asLong();
        long last = request.get("last").asLong();
        LedgerHandle handle = handle(request);
        return await(unconfirmed
                ? handle.readUnconfirmedAsync(first, last) : handle.readAsync(first, last));
    }

    private LedgerEntries batchRead(JsonNode request) throws Exception {
        return await(handle(request).batchReadAsync(request.get("first").asLong(),
                request.get("max_count").asInt(), request.get("max_size_bytes").asLong()));
    }

    private void readLast(JsonNode request, ObjectNode result) throws Exception {
        org.apache.bookkeeper.client.LedgerEntry last = handle(request).readLastEntry();
        entry(last.getEntryId(), last.getEntry(), result.putArray("entries"));
    }

    private static void entries(LedgerEntries found, ObjectNode result) throws Exception {
        ArrayNode entries = result.putArray("entries");
        try (LedgerEntries open = found) {
            for (LedgerEntry entry : open) {
                entry(entry.getEntryId(), entry.getEntryBytes(), entries);
            }
        }
    }

    private static void entry(long id, byte[] payload, ArrayNode entries) throws Exception {
        StringBuilder hash = new StringBuilder();
        for (byte one : MessageDigest.getInstance("SHA-256").digest(payload)) {
            hash.append(String.format("%02x", one));
        }
        entries.addArray().add(id).add(payload.length).add(hash.toString());
    }

    private void readLac(JsonNode request, ObjectNode result) throws Exception {
        LedgerHandle handle = handle(request);
        switch (request.get("way").asText()) {
            case "explicit":
                result.put("last_add_confirmed", handle.readExplicitLastConfirmed());
                break;
            case "try":
                result.put("last_add_confirmed", handle.tryReadLastConfirmed());
                break;
            default:
                result.put("last_add_confirmed", handle.readLastConfirmed());
        }
    }

    private void poll(JsonNode request, ObjectNode result) throws Exception {
        LastConfirmedAndEntry news = await(handle(request).readLastAddConfirmedAndEntryAsync(
                request.get("entry").asLong(), request.get("timeout_ms").asLong(),
                request.get("parallel").asBoolean()));
        ArrayNode entries = result.putArray("entries");
        result.put("last_add_confirmed", news.getLastAddConfirmed());
        if (news.hasEntry()) {
            entry(news.getEntry().getEntryId(), news.getEntry().getEntryBytes(), entries);
        }
        news.close();
    }

    private void list(JsonNode request, ObjectNode result) throws Exception {
        ArrayNode ids = result.putArray("ledgers");
        try (ListLedgersResult found = await(client(request).newListLedgersOp().execute())) {
            for (Iterator<Long> each = found.toIterable().iterator(); each.hasNext(); ) {
                ids.add(each.next());
            }
        }
    }

    private void metadata(JsonNode request, ObjectNode result) throws Exception {
        LedgerMetadata metadata = await(client(request).getLedgerMetadata(ledger(request)));
        result.put("state", metadata.getState().toString());
        result.put("digest", metadata.getDigestType().toString());
        result.put("ensemble", metadata.getEnsembleSize());
        result.put("write", metadata.getWriteQuorumSize());
        result.put("ack", metadata.getAckQuorumSize());
        result.put("last_entry", metadata.getLastEntryId());
        result.put("length", metadata.getLength());
        result.put("version", metadata.getMetadataFormatVersion());
        result.put("password", new String(metadata.getPassword(), StandardCharsets.UTF_8));
        ObjectNode custom = result.putObject("custom");
        metadata.getCustomMetadata().forEach((key, value) ->
                custom.put(key, new String(value, StandardCharsets.UTF_8)));
        ObjectNode ensembles = result.putObject("ensembles");
        metadata.getAllEnsembles().forEach((first, members) -> {
            ArrayNode names = ensembles.putArray(Long.toString(first));
            members.forEach(member -> names.add(member.toString()));
        });
    }

    /** What the peer's auditor finds missing of a ledger, in fragments. */
    private void check(JsonNode request, ObjectNode result) throws Exception {
        CompletableFuture<Integer> missing = new CompletableFuture<>();
        new LedgerChecker(client(request)).checkLedger(handle(request), (rc, fragments) -> {
            if (rc == 0) {
                missing.complete(fragments.size());
            } else {
                missing.completeExceptionally(
                        org.apache.bookkeeper.client.BKException.create(rc));
            }
        });
        result.put("missing", await(missing));
    }

    private void bookies(JsonNode request, ObjectNode result) throws Exception {
        try (BookKeeperAdmin admin = new BookKeeperAdmin(client(request))) {
            ArrayNode writable = result.putArray("writable");
            for (BookieId bookie : admin.getAvailableBookies()) {
                writable.add(bookie.toString());
            }
            ArrayNode readOnly = result.putArray("readonly");
            for (BookieId bookie : admin.getReadOnlyBookies()) {
                readOnly.add(bookie.toString());
            }
        }
    }

    /** Has the server end the session of a client, as if nothing had been heard of it for long. */
    private void expireSession(JsonNode request) throws Exception {
        ZooKeeper living =
                ((ZKMetadataDriverBase) client(request).getMetadataClientDriver()).getZk();
        long session = living.getSessionId();
        String servers = ZKMetadataDriverBase.getZKServersFromServiceUri(
                URI.create(request.get("uri").asText()));
        CountDownLatch connected = new CountDownLatch(1);
        ZooKeeper other = new ZooKeeper(servers, 10_000, event -> connected.countDown(),
                session, living.getSessionPasswd());
        connected.await(PATIENCE_S, TimeUnit.SECONDS);
        other.close();
        while (living.getSessionId() == session) {
            Thread.sleep(20);
        }
    }
}
