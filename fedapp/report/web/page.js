// The page as a file: what it shows is in it.
import { openPage } from "./main.js";

openPage();
