import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.common.component.LifecycleComponentStack;
import org.apache.bookkeeper.conf.AbstractConfiguration;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.replication.AuditorElector;
import org.apache.bookkeeper.replication.AutoRecoveryMain;
import org.apache.bookkeeper.server.EmbeddedServer;
import org.apache.bookkeeper.server.conf.BookieConfiguration;

/** Bookies and auto-recovery of the peer inside this process, known by a name the test gives. */
final class PeerServers {
    private final Map<String, EmbeddedServer> bookies = new ConcurrentHashMap<>();
    private final Map<String, AutoCloseable> recoveries = new ConcurrentHashMap<>();

    boolean run(String op, JsonNode request, ObjectNode result) throws Exception {
        switch (op) {
            case "init_cluster": BookKeeperAdmin.initNewCluster(conf(request)); return true;
            case "start_bookie": startBookie(request); return true;
            case "stop_bookie": stopBookie(request); return true;
            case "make_read_only": makeReadOnly(request); return true;
            case "start_recovery": startRecovery(request); return true;
            case "stop_recovery": recoveries.remove(name(request)).close(); return true;
            default: return false;
        }
    }

    /** Sets options by the keys of the peer's configuration files. */
    static void set(AbstractConfiguration<?> conf, JsonNode options) {
        options.fields().forEachRemaining(option ->
                conf.setProperty(option.getKey(), option.getValue().asText()));
    }

    private static String name(JsonNode request) {
        return request.get("name").asText();
    }

    private static ServerConfiguration conf(JsonNode request) {
        ServerConfiguration conf = new ServerConfiguration();
        set(conf, request.get("conf"));
        return conf;
    }

    private void startBookie(JsonNode request) throws Exception {
        EmbeddedServer server =
                EmbeddedServer.builder(new BookieConfiguration(conf(request))).build();
        server.getLifecycleComponentStack().start();
        bookies.put(name(request), server);
    }

    /** What happens to a bookie whose disks are full. */
    private void makeReadOnly(JsonNode request) throws Exception {
        bookies.get(name(request)).getBookieService().getServer().getBookie().getStateManager()
                .transitionToReadOnlyMode().get();
    }

    private void stopBookie(JsonNode request) {
        LifecycleComponentStack stack =
                bookies.remove(name(request)).getLifecycleComponentStack();
        stack.stop();
        stack.close();
    }

    /** Starts an auditor, a replication worker, or both as the peer's daemon does. */
    private void startRecovery(JsonNode request) throws Exception {
        ServerConfiguration conf = conf(request);
        switch (request.get("part").asText()) {
            case "auditor":
                AuditorElector elector = new AuditorElector(name(request), conf);
                elector.start();
                recoveries.put(name(request), elector::shutdown);
                break;
            case "worker":
                // A worker with a client of its own closes it before it gives back the ledger it
                // was interrupted at, and asks ZooKeeper for ever; the daemon's closes it after.
                AutoRecoveryMain daemon = new AutoRecoveryMain(conf);
                daemon.getReplicationWorker().start();
                recoveries.put(name(request), daemon::shutdown);
                break;
            default:
                AutoRecoveryMain both = new AutoRecoveryMain(conf);
                both.start();
                recoveries.put(name(request), both::shutdown);
        }
    }
}
